from service.cli import daemon

daemon()
