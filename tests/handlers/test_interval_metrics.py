from candor_monai.handlers.interval_metrics import interval_metrics


def test_ends_of_intervals_by_hand():
    finding = {"level": "finding", "finding": "Edema", "group": None}
    group = {"level": "group", "finding": "Edema", "group": "view=AP"}
    results = {
        "discordance": [
            {
                **finding,
                "status": "ok",
                "D": 0.4,
                "D_total_lo": 0.3,
                "D_total_hi": 0.5,
                "p_chance": 0.02,
                "D_all_lo": None,
            },
            {**group, "status": "ok", "margin_auroc_total_lo": 0.6, "margin_auroc_total_hi": 0.7},
            {"level": "task", "finding": None, "group": None, "status": "incomplete", "D_total_lo": 0.1},
        ],
        "probe": [{**finding, "auroc": 0.8, "auroc_lo": 0.7, "auroc_hi": 0.9}],
    }
    assert interval_metrics(results) == {
        **{"D_lo/Edema": 0.3, "D_hi/Edema": 0.5, "D_p_chance/Edema": 0.02},
        **{"margin_auroc_lo/Edema/view_AP": 0.6, "margin_auroc_hi/Edema/view_AP": 0.7},
        **{"head_auroc_lo/Edema": 0.7, "head_auroc_hi/Edema": 0.9},
    }
