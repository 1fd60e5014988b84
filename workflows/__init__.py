"""Order, waiting and decisions of a job; everything else is in activities. Imports `contracts` only."""
