"""The maths of the methods: pure functions of 5 to 25 lines."""
