"""The search attributes by which operators find jobs; all of the type Keyword."""

TENANT = "Tenant"
OPERATION = "Operation"
LANE = "Lane"
STATE = "State"
SEARCH_ATTRIBUTES = (TENANT, OPERATION, LANE, STATE)
