"""Problems that last: the watchdog that finds them, and the alerts that report them."""
