from service import import_path

import_path.drop_archives()  # before anything of Spark is imported

from service.cli import daemon  # noqa: E402

daemon()
