"""The plug-in surface: what a team writes to have its records changed in bulk."""
