"""The engine and the framework of Fractus; knows no modality and no device recipe."""
