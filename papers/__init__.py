"""The studies behind `docs/results`: runs that take hours, kept results, and the pages made from them."""
