"""How are the weights of experts for corresponding patches related?"""
