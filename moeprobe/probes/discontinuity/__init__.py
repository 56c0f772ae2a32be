"""Does the output jump where the routing switches?"""
