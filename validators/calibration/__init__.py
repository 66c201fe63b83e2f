"""Checks of calibration data with Great Expectations: is it good evidence?"""
