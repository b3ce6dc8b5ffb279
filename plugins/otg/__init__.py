"""A traffic generator over a running lab, with the API of Open Traffic Generator (OTG)."""
