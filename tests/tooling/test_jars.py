"""The Java libraries for tests must fit the Hadoop that comes with pyspark."""

import xml.etree.ElementTree
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]


def test_the_libraries_are_of_pysparks_hadoop() -> None:
    version = xml.etree.ElementTree.parse(ROOT / "tools/jars/pom.xml").findtext("properties/hadoop")
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{version}.jar").exists()
