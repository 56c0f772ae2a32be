"""Do corresponding patches get the same experts?"""
