"""How well do a few labeled images per class separate the classes by the model's features?"""
