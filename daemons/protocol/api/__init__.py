"""What clients may ask of us, as types: OpenAI's bodies and SGLang's; data only, no behaviour."""
