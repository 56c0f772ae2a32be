"""The match that chance alone would reach.

``trials`` has the pairs and the strata they are drawn within, and the stricter level of two patches of one image.
``levels`` has the chance level of a match, under the weights of resamples or by ``totals``, counts that add up over
blocks. ``sets`` is for sets of experts.
"""
