"""Public layouts of the other methods: one file a layout, all of them read into one normal form."""
