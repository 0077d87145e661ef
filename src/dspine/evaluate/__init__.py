"""The evaluate room: tasks, and acceptance measured on them in the field's definitions, from answers kept on disk."""
