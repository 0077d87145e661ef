"""The evaluate room: acceptance measured in the field's definitions, with intervals, from answers kept on disk."""
