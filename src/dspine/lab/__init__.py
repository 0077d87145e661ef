"""The lab: drafters of several methods trained at one budget on the same data, and measured side by side."""
