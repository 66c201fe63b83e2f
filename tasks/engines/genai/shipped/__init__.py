"""How a version is opened in onnxruntime-genai: in a run, in the measuring process, and at consumers, who get this folder."""
