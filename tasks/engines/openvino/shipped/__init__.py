"""How a version is opened in OpenVINO: in a run, in the measuring process, and at consumers, who get this folder alone."""
