"""The 18 findings of CT-RATE, in the column order of its label files, in lower case."""

CT_RATE_FINDINGS = (
    "medical material",
    "arterial wall calcification",
    "cardiomegaly",
    "pericardial effusion",
    "coronary artery wall calcification",
    "hiatal hernia",
    "lymphadenopathy",
    "emphysema",
    "atelectasis",
    "lung nodule",
    "lung opacity",
    "pulmonary fibrotic sequela",
    "pleural effusion",
    "mosaic attenuation pattern",
    "peribronchial thickening",
    "consolidation",
    "bronchiectasis",
    "interlobular septal thickening",
)
