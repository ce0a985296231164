"""What every layer uses: errors, units, settings, facts about the host. Imports nothing from other layers."""
