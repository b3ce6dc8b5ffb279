"""SONiC's config_db.json: which of its keys become keys of a fabric file, and which are not modelled."""
