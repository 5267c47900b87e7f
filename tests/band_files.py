"""Files of bands as other programs write them: GeoTIFFs, DICOMs, cubes, folders of single bands."""

import io
from pathlib import Path

import numpy as np
import tifffile
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

DESCRIPTION = '<Item name="DESCRIPTION" sample="{}" role="description">{}</Item>'
GEO = [  # a tile in a coordinate reference system of its own, as user-defined (32767)
    (33550, "d", 3, (10.0, 10.0, 0.0), True),
    (34735, "H", 8, (1, 1, 0, 1, 3072, 0, 1, 32767), True),
]


def tiff(values, names=None, nodata=None, tags=(), **options) -> bytes:
    """Return a TIFF of values (H, W) or (H, W, bands), with GDAL's names and mark of no data."""
    extra = list(tags)
    if names is not None:
        items = "".join(DESCRIPTION.format(at, name) for at, name in enumerate(names))
        extra.append((42112, "s", 0, f"<GDALMetadata>{items}</GDALMetadata>", True))
    if nodata is not None:
        extra.append((42113, "s", 0, str(nodata), True))
    stream = io.BytesIO()
    given = {"planarconfig": "contig"} if values.ndim == 3 else {}
    given |= {"photometric": "minisblack", "metadata": None, "extratags": extra}
    tifffile.imwrite(stream, values, **(given | options))
    return stream.getvalue()


def npy(values) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def dicom(values, kind="MONOCHROME2", bits=12, signed=False, **facts) -> bytes:
    """Return a DICOM file of stored values (H, W) or (H, W, 3), of a patient named Doe^Jane."""
    file = Dataset()
    file.PatientName, file.PatientID = "Doe^Jane", "SECRET-4711"
    file.SOPClassUID, file.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.1.1", generate_uid()
    file.Rows, file.Columns = values.shape[:2]
    file.SamplesPerPixel = 1 if values.ndim == 2 else values.shape[2]
    file.PhotometricInterpretation = kind
    if values.ndim == 3:
        file.PlanarConfiguration = 0
    file.BitsAllocated = 8 * values.dtype.itemsize
    file.BitsStored, file.HighBit = bits, bits - 1
    file.PixelRepresentation = int(signed)
    file.PixelData = values.tobytes()
    for name, value in facts.items():
        setattr(file, name, value)
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID
    stream = io.BytesIO()
    file.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def band_folder(folder: Path, bands) -> Path:
    """Write one TIFF per band of a mapping from names, as BigEarthNet does."""
    folder.mkdir(parents=True)
    for name, values in bands.items():
        (folder / f"{folder.name}_{name}.tif").write_bytes(tiff(values))
    return folder
