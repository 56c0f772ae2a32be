"""The match that chance alone would reach.

``trials`` has the pairs and the strata they are drawn within, ``levels`` the chance level of a match. ``totals`` and
``resampled`` are its two ways of computing: from counts that add up over blocks, and under the weights of resamples.
``within_image`` is the stricter level of two patches of one image; ``sets`` and ``subsets`` are for sets of experts.
"""
