"""Programs of others as child processes: Verilator, yosys, nextpnr. Results are kept by content; time is bounded."""
