"""How far does one token's routing depend on the others?"""
