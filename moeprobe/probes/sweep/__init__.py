"""How do routing and output change with the severity of a perturbation?"""
