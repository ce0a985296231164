"""Which design of a model fits a device: resources and clocks by a fitted model, foldings solved exactly."""
