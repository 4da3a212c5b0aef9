"""Discovery of plugins, the records they return and the hooks they implement."""
