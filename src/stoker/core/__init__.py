"""What every layer uses: errors, units, settings, facts of the host, records. Imports nothing above itself."""
