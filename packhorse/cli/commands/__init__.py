"""The commands of the program, by what they are about."""
