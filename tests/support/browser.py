"""Chromium without a window, spoken to by its DevTools protocol: what a page logs, asks for and shows.

`websocket-client` carries the messages: Selenium would bring a driver, and a hundred times as much code, for the same.
"""
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import websocket

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
LONGEST_START_SECONDS = 60


class Browser:
    """A browser with one page.

    Attributes:
        errors: what the page has logged as an error, and its exceptions.
        requests: the addresses that it asked for, but for data within the page.
    """

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.errors, self.requests = [], []
        for domain in ('Page', 'Runtime', 'Network', 'Log'):
            self.send(f'{domain}.enable')

    def send(self, method, **params):
        """Sends a command, and gives its result; notes what the page does meanwhile."""
        self._number += 1
        self._socket.send(json.dumps({'id': self._number, 'method': method, 'params': params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get('id') == self._number:
                assert 'error' not in message, message['error']
                return message['result']
            self._note(message)

    def _note(self, message):
        params = message.get('params', {})
        if message['method'] == 'Runtime.exceptionThrown':
            self.errors.append(params['exceptionDetails'])
        elif message['method'] == 'Runtime.consoleAPICalled' and params['type'] in ('error', 'warning', 'assert'):
            self.errors.append(params['args'])
        elif message['method'] == 'Log.entryAdded' and params['entry']['level'] in ('error', 'warning'):
            self.errors.append(params['entry'])
        elif message['method'] == 'Network.requestWillBeSent' and not params['request']['url'].startswith('data:'):
            self.requests.append(params['request']['url'])

    def open(self, address, width=1200, height=900, dark=False):
        """Loads a page anew, in a window of a size in CSS pixels, and waits until it is there."""
        self.errors.clear()
        self.requests.clear()
        self.send('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])
        self.send('Page.navigate', url=address)
        until = time.monotonic() + LONGEST_START_SECONDS
        while self.ask('location.href + " " + document.readyState') != f'{address} complete':
            assert time.monotonic() < until, 'the page does not load'
            time.sleep(0.02)

    def ask(self, expression):
        """The value of an expression of JavaScript in the page."""
        found = self.send('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in found, found['exceptionDetails']
        return found['result'].get('value')

    def point(self, x, y, click=False):
        """Moves the pointer to a place of the window in CSS pixels, and clicks there."""
        for kind in ['mouseMoved', *['mousePressed', 'mouseReleased'] * click]:
            self.send('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left' if click else 'none', clickCount=1)

    def screenshot(self, path, whole=True):
        """Writes what the page shows, or all of it, as PNG."""
        found = self.send('Page.captureScreenshot', captureBeyondViewport=whole, **self._clip() if whole else {})
        Path(path).write_bytes(base64.b64decode(found['data']))

    def _clip(self):
        size = self.send('Page.getLayoutMetrics')['cssContentSize']
        return {'clip': {**size, 'scale': 1}}

    def pdf(self, path):
        """Writes the page as it is printed."""
        Path(path).write_bytes(base64.b64decode(self.send('Page.printToPDF', printBackground=True)['data']))


@contextlib.contextmanager
def browser():
    """Starts a browser, which ends with the block.

    Raises:
        OSError: it does not start here; the message says why.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--disable-background-networking', '--hide-scrollbars', '--remote-debugging-port=0',
             '--remote-allow-origins=*', f'--user-data-dir={folder}', 'about:blank'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            socket = websocket.create_connection(_address(Path(folder), process), timeout=LONGEST_START_SECONDS)
            with contextlib.closing(socket):
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(LONGEST_START_SECONDS)


def _address(folder, process):
    """Where the page of a browser that starts listens."""
    import http.client

    until = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            port = int((folder / 'DevToolsActivePort').read_text().split()[0])
            connection = http.client.HTTPConnection('127.0.0.1', port, timeout=5)
            with contextlib.closing(connection):
                connection.request('GET', '/json/list')
                pages = json.loads(connection.getresponse().read())
            return next(each['webSocketDebuggerUrl'] for each in pages if each['type'] == 'page')
        time.sleep(0.05)
    raise OSError('Chromium does not start')
