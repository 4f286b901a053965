"""The Python API: what `import imdbattn` offers. It runs what the commands run."""

import warnings

# tqdm warns in notebooks without ipywidgets when huggingface_hub is imported.
warnings.filterwarnings("ignore", "IProgress not found")
