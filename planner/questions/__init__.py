"""Questions to a posterior: efficiency, need, value, comparison, sensitivity.  `docs/recipes.md` defines them."""
