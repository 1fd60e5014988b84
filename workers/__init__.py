"""The worker processes: roles, settings, the composition root, the control loop, drain."""
