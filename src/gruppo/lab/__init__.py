"""Where methods are put to the test: the laws that every method must keep."""
