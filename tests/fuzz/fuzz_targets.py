"""TARGETS: readers of files and routes of the server, by name.

Another area registers its reader by one more ``Target`` in the list of its kind.
"""

from fuzz_asked import ASKED
from fuzz_fields import FIELDS
from fuzz_kept import KEPT
from fuzz_library import LIBRARY
from fuzz_official import OFFICIAL
from fuzz_openvino import OPENVINO
from fuzz_pictures import PICTURES
from fuzz_requests import REQUESTS
from fuzz_results import RESULTS
from fuzz_tables import TABLES

EVERY = (
    *(*TABLES, *OFFICIAL, *FIELDS, *PICTURES, *RESULTS, *LIBRARY),
    *(*REQUESTS, *KEPT, *ASKED, *OPENVINO),
)
TARGETS = {target.name: target for target in EVERY}
