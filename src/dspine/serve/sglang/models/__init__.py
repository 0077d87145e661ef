"""Networks that SGLang's model registry finds by their class names; it imports every module of this package."""
