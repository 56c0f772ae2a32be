"""Which patches change experts?"""
