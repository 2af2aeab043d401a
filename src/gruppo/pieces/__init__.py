"""Pure functions, 5 to 25 lines each: the maths that methods are made of."""
