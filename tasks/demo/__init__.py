"""Demos: real models and real data, built locally from public packages."""
