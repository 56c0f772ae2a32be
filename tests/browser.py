"""A real browser for tests of pages.

Needs Debian's ``chromium`` and ``chromium-driver``. Where they are not there the tests are skipped, unless
MOEPROBE_REQUIRE_BROWSER=1 says that they must run.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
REQUIRED = os.environ.get("MOEPROBE_REQUIRE_BROWSER") == "1"
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER) and not REQUIRED,
    reason="pages in a browser: there is no chromium and chromedriver; apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert BROWSER and DRIVER, "MOEPROBE_REQUIRE_BROWSER=1, but there is no chromium and chromedriver"
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses to start as root otherwise
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    downloads = tmp_path_factory.mktemp("downloads")
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )
    driver.downloads = downloads  # type: ignore[attr-defined]
    yield driver
    driver.quit()
