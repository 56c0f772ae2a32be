"""How sure is the router of its choices?"""
