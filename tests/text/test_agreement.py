from evidcore.case import Finding
from evidcore.text.agreement import affirmed


def test_what_is_present_anywhere_is_affirmed_once_in_the_order_of_mention():
    said = [
        Finding(name="emphysema", state="uncertain"),
        Finding(name="lung nodule", state="present"),
        Finding(name="cardiomegaly", state="absent"),
        Finding(name="emphysema", state="present"),
        Finding(name="lung nodule", state="absent"),
    ]
    assert affirmed(said) == ("emphysema", "lung nodule")
    assert affirmed([]) == ()
