"""The volume vision-language model, its processor, feature bank and language model."""
