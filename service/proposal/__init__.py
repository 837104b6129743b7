"""A proposal of settings: what a sample of records says about device id, event time, measures and views. Pure functions."""
